"""Settings of Spark for small data and a short life."""

# Compiled with what shows at once, no more, for a class or a query is seldom met twice here. What
# Spark brings is not checked again. There is room for all that is compiled and for all classes,
# else much is thrown away or looked through.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=192m "
    "-XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# Adaptive plans would be right for large data; they are made of several jobs where one will do.
QUICK = {
    "spark.driver.defaultJavaOptions": QUICK_JAVA,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}
