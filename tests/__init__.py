"""The tests of Tenure."""
