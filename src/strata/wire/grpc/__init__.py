"""The gRPC server, written on an asyncio protocol."""
