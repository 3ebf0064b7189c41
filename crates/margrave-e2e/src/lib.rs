//! Nothing of its own: the tests in `tests/e2e` start the real programs and look at what they do.
