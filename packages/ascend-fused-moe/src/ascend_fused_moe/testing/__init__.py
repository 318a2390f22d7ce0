"""Tools for tests of layers that are spread over ranks; nothing outside of tests imports them."""
