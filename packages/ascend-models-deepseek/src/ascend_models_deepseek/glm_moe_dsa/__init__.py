"""GLM-5: DeepSeek-V3.2 with another rotation in the indexer, and selections that layers share."""
