"""What is told to people and to Prometheus: report, metrics, money, pictures."""
