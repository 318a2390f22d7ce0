"""How tokens and results travel between the ranks that hold a layer's experts."""
