"""Hooks of build backends: bundles made while a wheel is built."""
