"""What ranks do together: shard_map, exchanges, layouts."""
