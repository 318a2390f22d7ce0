"""MiniMax-M3: GQA over blocks that an indexer selects, sigmoid routing, MTP, images and video."""
