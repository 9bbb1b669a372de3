"""Tests of hubspoke/doctor."""
