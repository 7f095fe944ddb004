{{- define "reknit.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "reknit.job" -}}
{{- .Values.job.name | default .Release.Name -}}
{{- end -}}

{{- define "reknit.selector" -}}
app.kubernetes.io/name: reknit
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "reknit.labels" -}}
{{ include "reknit.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* An image: (dict "root" $ "image" .Values.images.agent) */}}
{{- define "reknit.image" -}}
{{- with .root.Values.images.registry }}{{ . }}/{{ end -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{/* The pods of the smallest job that trains. */}}
{{- define "reknit.smallest" -}}
{{- $workers := mul .Values.job.minReplicas .Values.job.pipe .Values.job.model -}}
{{- div (add $workers .Values.worker.perPod -1) .Values.worker.perPod -}}
{{- end -}}

{{- define "reknit.hardened" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: {{ . }}
capabilities:
  drop: [ALL]
{{- end -}}
