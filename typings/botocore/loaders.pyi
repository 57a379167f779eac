from typing import Any

class JSONFileLoader:
    def load_file(self, file_path: str) -> Any: ...
