"""DeepSeek-V3.2: DeepSeek-V3 whose attention reads the tokens that an indexer selects."""
