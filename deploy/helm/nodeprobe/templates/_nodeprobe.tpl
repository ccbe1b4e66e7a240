{{- define "nodeprobe.name" -}}
{{- if contains "nodeprobe" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-nodeprobe{{ end }}
{{- end }}

{{- /* app.kubernetes.io/name is the job, by which alerts and dashboard select. */}}
{{- define "nodeprobe.selector" -}}
app.kubernetes.io/name: nodeprobe
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nodeprobe.labels" -}}
{{ include "nodeprobe.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "nodeprobe.account" -}}
{{ .Values.serviceAccount.name | default (include "nodeprobe.name" .) }}
{{- end }}

{{- /* The toleration also matches nodes without a Linux of their own, on which the pods would never run. */}}
{{- define "nodeprobe.machines" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    - matchExpressions:
      - {key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}
      - {key: type, operator: NotIn, values: [virtual-kubelet]}
{{- end }}

{{- /* Whether there is a web configuration file: it may require users or client certificates, and a kubelet's probes
have neither. */}}
{{- define "nodeprobe.guarded" -}}
{{- if or .Values.config.webConfigFile (join " " .Values.extraArgs | contains "--web.config.file") }}true{{ end }}
{{- end }}

{{- /* The configuration, over what the mode needs. */}}
{{- define "nodeprobe.config" -}}
{{- $config := dict "apiVersion" "nodeprobe.dev/v1alpha1" "kind" "NodeProbeConfiguration" "webListenAddress" ":9732" }}
{{- if eq .Values.mode "own" }}
{{- $config = merge $config (dict "impersonateNode" (not .Values.config.kubeconfig) "registerNode" false "containerRuntimeEndpoint" "") }}
{{- end }}
{{- if include "nodeprobe.guarded" . }}
{{- $config = merge $config (dict "webHealthListenAddress" ":9733") }}
{{- end }}
{{- mergeOverwrite $config (deepCopy .Values.config) (dict "mode" .Values.mode) | toYaml }}
{{- end }}

{{- /* The pods' identity at the API server: "none", "account" (their service account) or "node". */}}
{{- define "nodeprobe.identity" -}}
{{- $config := include "nodeprobe.config" . | fromYaml }}
{{- if $config.kubeconfig }}none
{{- else if eq .Values.mode "observe" }}
{{- if $config.shadow }}{{ fail "config.shadow in mode observe needs config.kubeconfig" }}{{ end }}none
{{- else if $config.impersonateNode }}node
{{- else if eq .Values.mode "own" }}{{ fail "mode own needs config.impersonateNode or config.kubeconfig" }}
{{- else }}account
{{- end }}
{{- end }}
