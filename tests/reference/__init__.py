"""Plain float64 NumPy, straight from the equations of the paper: slow, obvious, and written apart from the package."""
