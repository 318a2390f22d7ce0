"""Speed and memory against peers, side by side in one run; never part of the tests."""
