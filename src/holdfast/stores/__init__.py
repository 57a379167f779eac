"""Where the truth about locks lives: one module or package a store, and the contract that all of them meet."""
