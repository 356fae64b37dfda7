"""PyTorch's machinery of tests sets global flags when it is imported, so only ``make test-slow`` opens this folder."""


def pytest_ignore_collect(collection_path, config):
    return True if "not slow" in config.option.markexpr else None
