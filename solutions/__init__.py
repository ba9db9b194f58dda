"""What the instructor keeps: reference answers and, later, lessons, oracles and known mistakes."""
