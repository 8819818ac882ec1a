"""Values of messages in Protobuf."""
