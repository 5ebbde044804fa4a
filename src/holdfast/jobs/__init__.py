"""How long have I got, who started me, and who starts me again? Never touches a checkpoint."""
