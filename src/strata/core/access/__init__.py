"""Who may use the cluster: access tokens and their roles."""
