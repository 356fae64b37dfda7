"""The one error about data."""


class DataError(ValueError):
    """Data that cannot be used; the message is one line that names the file.

    Example:
        >>> from longtail.lab.data import open_dataset
        >>> try:
        ...     open_dataset("cifar10", "nowhere")
        ... except DataError as error:
        ...     print(str(error)[:29])
        cifar10 is not in nowhere: no
    """
