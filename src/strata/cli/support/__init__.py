"""What the verbs share: the REST client, tables, terminal output, options."""
