"""The step loop: requests in, events out, one model step at a time."""
