"""Traces of reads: our own format, conversion from and to others', recording and replay."""
