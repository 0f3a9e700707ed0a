{{/*
A pod's spec with gpualert around its first container, or the one that is named; for charts that own their Jobs:

    template:
      spec: {{- include "gpualert.wrap" (dict "pod" (fromYaml (include "mychart.pod" .)) "options" .Values.gpualert) | nindent 8 }}

Options: enabled (true), image, imagePullPolicy, container, logVolume (a volume's source, default emptyDir), logDir,
configMap, smtpSecret, notify, survivor, jobLabel (default batch.kubernetes.io/job-name; "" for none).
*/}}
{{- define "gpualert.wrap" -}}
{{- $pod := deepCopy .pod -}}
{{- $o := default dict .options -}}
{{- if ne (toString (dig "enabled" true $o)) "false" -}}
{{- $image := dig "image" "gpualert:0.1.0" $o -}}
{{- $logDir := dig "logDir" "/var/log/gpualert" $o -}}
{{- $name := dig "container" (index $pod.containers 0).name $o -}}
{{- $launcher := "/gpualert/bin/gpualert" -}}
{{- $mounts := list (dict "name" "gpualert-bundle" "mountPath" "/gpualert" "readOnly" true) (dict "name" "gpualert-log" "mountPath" $logDir) -}}
{{- $volumes := list (dict "name" "gpualert-bundle" "emptyDir" (dict "sizeLimit" "200Mi")) (merge (dict "name" "gpualert-log") (dig "logVolume" (dict "emptyDir" dict) $o)) -}}
{{- $env := list -}}
{{- range $variable, $path := dict "GPUALERT_POD_NAME" "metadata.name" "GPUALERT_POD_NAMESPACE" "metadata.namespace" "GPUALERT_NODE_NAME" "spec.nodeName" -}}
{{- $env = append $env (dict "name" $variable "valueFrom" (dict "fieldRef" (dict "fieldPath" $path))) -}}
{{- end -}}
{{- $jobLabel := dig "jobLabel" "batch.kubernetes.io/job-name" $o -}}
{{- if $jobLabel -}}
{{- $env = append $env (dict "name" "GPUALERT_JOB_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" (printf "metadata.labels['%s']" $jobLabel)))) -}}
{{- end -}}
{{- $env = append $env (dict "name" "GPUALERT_LOG_DIR" "value" $logDir) -}}
{{- $env = append $env (dict "name" "GPUALERT_CONTAINERS" "value" (toString (len $pod.containers))) -}}
{{- with dig "notify" "" $o -}}{{- $env = append $env (dict "name" "GPUALERT_NOTIFY" "value" .) -}}{{- end -}}
{{- with dig "configMap" "" $o -}}
{{- $env = append $env (dict "name" "GPUALERT_CONFIG" "value" "/etc/gpualert-config/config.toml") -}}
{{- $mounts = append $mounts (dict "name" "gpualert-config" "mountPath" "/etc/gpualert-config" "readOnly" true) -}}
{{- $volumes = append $volumes (dict "name" "gpualert-config" "configMap" (dict "name" . "optional" true)) -}}
{{- end -}}
{{- with dig "smtpSecret" "" $o -}}
{{- $env = append $env (dict "name" "GPUALERT_SMTP_PASSWORD_FILE" "value" "/etc/gpualert-smtp/password") -}}
{{- $mounts = append $mounts (dict "name" "gpualert-smtp" "mountPath" "/etc/gpualert-smtp" "readOnly" true) -}}
{{- $volumes = append $volumes (dict "name" "gpualert-smtp" "secret" (dict "secretName" . "optional" true)) -}}
{{- end -}}
{{- $security := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if ne (toString (dig "securityContext" "runAsUser" "" $pod)) "0" -}}{{- $_ := set $security "runAsNonRoot" true -}}{{- end -}}
{{- $init := dict "name" "gpualert-install" "image" $image "command" (list $launcher "install" "/target") "volumeMounts" (list (dict "name" "gpualert-bundle" "mountPath" "/target")) "securityContext" $security -}}
{{- with dig "imagePullPolicy" "" $o -}}{{- $_ := set $init "imagePullPolicy" . -}}{{- end -}}
{{- $found := false -}}
{{- range $container := $pod.containers -}}
{{- if eq $container.name $name -}}
{{- $found = true -}}
{{- if not $container.command -}}
{{- fail (printf "gpualert.wrap: container %s has no command, so only its image knows what it runs: set command" $name) -}}
{{- end -}}
{{- $_ := set $container "command" (concat (list $launcher "run" "--") $container.command) -}}
{{- $_ := set $container "env" (concat (default list $container.env) $env (list (dict "name" "GPUALERT_CONTAINER_NAME" "value" $name))) -}}
{{- $_ := set $container "volumeMounts" (concat (default list $container.volumeMounts) $mounts) -}}
{{- if not $container.terminationMessagePolicy -}}{{- $_ := set $container "terminationMessagePolicy" "FallbackToLogsOnError" -}}{{- end -}}
{{- with $container.resources -}}
{{- $copied := dict -}}
{{- range $kind, $amounts := . -}}
{{- if has $kind (list "requests" "limits") -}}{{- with pick $amounts "cpu" "memory" "ephemeral-storage" -}}{{- $_ := set $copied $kind . -}}{{- end -}}{{- end -}}
{{- end -}}
{{- with $copied -}}{{- $_ := set $init "resources" . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}{{- fail (printf "gpualert.wrap: there is no container %s" $name) -}}{{- end -}}
{{- $inits := list $init -}}
{{- if dig "survivor" false $o -}}
{{- $attend := dict "name" "gpualert-attend" "image" $image "restartPolicy" "Always" "command" (list $launcher "attend" "--log-dir" $logDir) "env" $env "volumeMounts" (slice $mounts 1) "securityContext" $security "resources" (dict "requests" (dict "cpu" "10m" "memory" "64Mi") "limits" (dict "memory" "256Mi")) -}}
{{- with dig "imagePullPolicy" "" $o -}}{{- $_ := set $attend "imagePullPolicy" . -}}{{- end -}}
{{- $inits = append $inits $attend -}}
{{- end -}}
{{- $_ := set $pod "initContainers" (concat $inits (default list $pod.initContainers)) -}}
{{- $_ := set $pod "volumes" (concat (default list $pod.volumes) $volumes) -}}
{{- end -}}
{{- toYaml $pod -}}
{{- end -}}
