from collections.abc import Callable
from typing import Any

from celery import Celery, Task

def build_tracer(name: str, task: Task, *, app: Celery) -> Callable[..., Any]: ...
