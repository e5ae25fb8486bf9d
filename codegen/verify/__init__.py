"""What members of an exchange must agree on: evaluated for small meshes at every build."""
