"""What is seen of a scheduler: an overview, as tables, as a page, for Prometheus."""
