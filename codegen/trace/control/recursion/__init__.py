"""Recursion of bounded depth: functions that call themselves under conditions of the run."""
