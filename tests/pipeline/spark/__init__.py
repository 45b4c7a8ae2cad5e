"""The Spark session: Java, its settings, its workers, and a cluster of several JVMs."""
