"""Tools of Celery."""
