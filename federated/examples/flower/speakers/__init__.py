"""A Flower app whose devices each train on the lines of one speaker."""
