"""Tests of what applications of other libraries are given."""
