{{- define "weir.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.labels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "weir.name" .) -}}
{{- end -}}

{{- define "weir.startsPods" -}}
{{- if hasPrefix "k8s://" .Values.spark.master }}true{{ end -}}
{{- end -}}

{{- define "weir.sparkNamespace" -}}
{{- .Values.spark.namespace | default .Release.Namespace -}}
{{- end -}}

{{- define "weir.etcd" -}}
{{- $name := printf "%s-etcd" (include "weir.name" .) -}}
{{- $urls := list -}}
{{- range $at := until (int .Values.etcd.replicas) -}}
{{- $urls = append $urls (printf "http://%s-%d.%s:2379" $name $at $name) -}}
{{- end -}}
{{- toJson (.Values.etcdUrls | default $urls) -}}
{{- end -}}
