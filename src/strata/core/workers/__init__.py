"""Workers and agents: their facts and state, how they register, are fenced, and leave."""
