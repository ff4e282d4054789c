"""The tensor command: one formula on one array."""
