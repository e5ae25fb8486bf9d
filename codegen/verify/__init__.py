"""What members of an exchange must agree on: at every build, and in `spmd verify`."""
