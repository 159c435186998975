"""Scenes: a procedural COCO panoptic set. Things are told apart by shape alone, stuff by texture."""
