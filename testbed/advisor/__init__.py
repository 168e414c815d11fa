"""The advisor: what the order of prompts costs on real traffic, and what would win it back."""
