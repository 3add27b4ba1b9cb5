#!/bin/sh
# What the image runs: `weir …`, or one of Spark's executors where a driver on Kubernetes has asked for a pod (its
# argument is then `executor`, and the rest is in variables, as Spark's own image has it).
set -eu
if [ "${1:-}" != executor ]; then
    exec weir "$@"
fi
: "${SPARK_DRIVER_URL:?is set by the driver of a capture}"
home=$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
# one option each, which may have spaces
set --
at=0
while eval "[ -n \"\${SPARK_JAVA_OPT_$at+given}\" ]"; do
    eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$at\""
    at=$((at + 1))
done
exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$home/jars/*${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
