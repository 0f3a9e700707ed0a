{{- define "gpualert.fullname" -}}
{{- if contains "gpualert" .Release.Name -}}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{- else -}}{{ printf "%s-gpualert" .Release.Name | trunc 63 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "gpualert.labels" -}}
app.kubernetes.io/name: gpualert
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "gpualert.image" -}}
{{- with .Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "gpualert.secret" -}}
{{- if .Values.smtp.existingSecret }}{{ .Values.smtp.existingSecret }}{{ else if .Values.smtp.password }}{{ include "gpualert.fullname" . }}{{ end }}
{{- end -}}

{{/* One value of TOML. */}}
{{- define "gpualert.toml" -}}
{{- if kindIs "slice" . -}}[{{ range $i, $item := . }}{{ if $i }}, {{ end }}{{ include "gpualert.toml" $item }}{{ end }}]
{{- else if kindIs "string" . -}}{{ toJson . }}
{{- else if kindIs "float64" . -}}{{ if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else -}}{{ . }}
{{- end -}}
{{- end -}}

{{- define "gpualert.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}
