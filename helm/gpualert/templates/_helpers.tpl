{{- define "gpualert.name" -}}
{{- default "gpualert" .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpualert.fullname" -}}
{{- $name := include "gpualert.name" . -}}
{{- if contains $name .Release.Name -}}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{- else -}}{{ printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "gpualert.labels" -}}
app.kubernetes.io/name: {{ include "gpualert.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "gpualert.image" -}}
{{- $image := default dict .Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ default "gpualert" $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}

{{- define "gpualert.watchImage" -}}
{{- $image := default dict .Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ default "gpualert-watch" $image.watchRepository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}

{{- define "gpualert.pullPolicy" -}}
{{- default "IfNotPresent" (default dict .Values.image).pullPolicy -}}
{{- end -}}

{{- define "gpualert.pullSecrets" -}}
{{- with (default dict .Values.image).pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gpualert.secret" -}}
{{- $smtp := default dict .Values.smtp -}}
{{- if $smtp.existingSecret }}{{ $smtp.existingSecret }}{{ else if $smtp.password }}{{ include "gpualert.fullname" . }}{{ end }}
{{- end -}}

{{/* The namespaces that have the configuration, as JSON: the release's own and those of admission.namespaces. */}}
{{- define "gpualert.namespaces" -}}
{{- concat (list .Release.Namespace) (default list (default dict .Values.admission).namespaces) | uniq | toJson -}}
{{- end -}}

{{/* One value of TOML. */}}
{{- define "gpualert.toml" -}}
{{- if kindIs "slice" . -}}[{{ range $i, $item := . }}{{ if $i }}, {{ end }}{{ include "gpualert.toml" $item }}{{ end }}]
{{- else if kindIs "string" . -}}{{ toJson . }}
{{- else if kindIs "float64" . -}}{{ if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else -}}{{ . }}
{{- end -}}
{{- end -}}

{{/* A value as a literal of CEL, which wants all values of a map to be of one type. */}}
{{- define "gpualert.cel" -}}
{{- if kindIs "map" . -}}
{ {{- $first := true -}}{{- range $key, $value := . -}}{{- if not (kindIs "invalid" $value) -}}
{{- if not $first }}, {{ end }}{{ toJson $key }}: dyn({{ include "gpualert.cel" $value }}){{- $first = false -}}
{{- end -}}{{- end -}} }
{{- else if kindIs "slice" . -}}[{{ range $i, $item := . }}{{ if $i }}, {{ end }}dyn({{ include "gpualert.cel" $item }}){{ end }}]
{{- else if kindIs "float64" . -}}{{ if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else -}}{{ toJson . }}
{{- end -}}
{{- end -}}

{{- define "gpualert.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}
