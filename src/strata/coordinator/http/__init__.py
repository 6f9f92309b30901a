"""The REST API, the live stream and the page: reads of the state, and commands to the engine."""
