{{- define "dhcp-meta.labels" -}}
app.kubernetes.io/part-of: dhcp-meta
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "dhcp-meta.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The program's arguments for the mode, behind install. */ -}}
{{- define "dhcp-meta.mode" -}}
- --bin-dir={{ .Values.binDir }}
- --mode={{ .Values.mode }}
{{- if has .Values.mode (list "search-path" "swap") }}
- --wrap={{ required "wrap names the plugin to stand in front of" .Values.wrap }}
{{- end }}
{{- end }}

{{- define "dhcp-meta.ovnNB" -}}
{{- $interposed := and (has .Values.mode (list "search-path" "swap")) (eq .Values.wrap "ovn-k8s-cni-overlay") -}}
{{ .Values.ovnNB | default (ternary "auto" "off" $interposed) }}
{{- end }}

{{- /* What installer, watcher and uninstaller are allowed. */ -}}
{{- define "dhcp-meta.installer" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add: [DAC_OVERRIDE]
{{- end }}
