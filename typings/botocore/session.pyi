from typing import Any

from botocore.config import Config

class Session:
    def __init__(self, *, profile: str | None = ...) -> None: ...
    def get_config_variable(self, logical_name: str) -> Any: ...
    def get_component(self, name: str) -> Any: ...
    def register_component(self, name: str, component: object) -> None: ...
    def create_client(
        self,
        service_name: str,
        *,
        region_name: str | None = ...,
        endpoint_url: str | None = ...,
        aws_access_key_id: str | None = ...,
        aws_secret_access_key: str | None = ...,
        config: Config = ...,
    ) -> Any: ...
