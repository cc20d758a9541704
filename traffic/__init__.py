"""What runs over a fabric: packet layers, flow templates, traffic patterns."""
