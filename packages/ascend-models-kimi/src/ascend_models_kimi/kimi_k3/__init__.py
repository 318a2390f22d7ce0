"""What Kimi-K3 adds to Kimi-Linear."""
