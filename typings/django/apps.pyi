class AppConfig:
    """An app."""

    name: str
    label: str
    verbose_name: str

    def ready(self) -> None:
        """Start."""
