"""The command and the settings of Celery."""
