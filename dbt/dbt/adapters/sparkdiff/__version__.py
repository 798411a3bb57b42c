"""The version that dbt shows."""

version = "0.1.0"
