{{/*
A pod's spec with gpualert around its first container, or the one that is named; for charts that own their Jobs:

    template:
      spec: {{- include "gpualert.wrap" (dict "pod" (fromYaml (include "mychart.pod" .)) "options" .Values.gpualert) | nindent 8 }}

Options: enabled (true), image, imagePullPolicy, imagePullSecrets, container, logVolume (a volume's source, default
emptyDir), logDir, configMap, smtpSecret, notify, survivor, survivorUser (whom images run as where no securityContext
says so), jobLabel (default batch.kubernetes.io/job-name; "" for none).
*/}}
{{- define "gpualert.wrap" -}}
{{- $pod := deepCopy .pod -}}
{{- $o := dict -}}
{{- range $option, $value := default dict .options -}}
{{- if not (has $option (list "enabled" "image" "imagePullPolicy" "imagePullSecrets" "container" "logVolume" "logDir" "configMap" "smtpSecret" "notify" "survivor" "survivorUser" "jobLabel")) -}}
{{- fail (printf "gpualert.wrap: there is no option %s" $option) -}}
{{- end -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $o $option $value -}}{{- end -}}
{{- end -}}
{{- if ne (toString (dig "enabled" true $o)) "false" -}}
{{- $containers := default list $pod.containers -}}
{{- $inits := default list $pod.initContainers -}}
{{- if not $containers -}}{{- fail "gpualert.wrap: the pod has no containers" -}}{{- end -}}
{{- $name := default (index $containers 0).name $o.container -}}
{{- $main := dict -}}
{{- range $containers -}}{{- if eq .name $name -}}{{- $main = . -}}{{- end -}}{{- end -}}
{{- if not $main -}}{{- fail (printf "gpualert.wrap: there is no container %s" $name) -}}{{- end -}}
{{- $image := default "gpualert:0.1.0" $o.image -}}
{{- $survivor := eq (toString (dig "survivor" false $o)) "true" -}}
{{- $launcher := "/gpualert/bin/gpualert" -}}

{{- /* Refused with the reason, as `gpualert inject` does. */ -}}
{{- $system := default (get (default dict $pod.nodeSelector) "kubernetes.io/os") (default dict $pod.os).name -}}
{{- if eq (toString $system) "windows" -}}{{- fail "gpualert.wrap: the pod runs on Windows, for which there is no gpualert" -}}{{- end -}}
{{- range default list $pod.volumes -}}
{{- if has .name (list "gpualert-bundle" "gpualert-log" "gpualert-config" "gpualert-smtp") -}}
{{- fail (printf "gpualert.wrap: a volume is called %s already: rename it" .name) -}}
{{- end -}}
{{- end -}}
{{- range concat $containers $inits -}}
{{- if has .name (list "gpualert-install" "gpualert-attend") -}}
{{- fail (printf "gpualert.wrap: a container is called %s already: rename it" .name) -}}
{{- end -}}
{{- end -}}
{{- if not $main.command -}}
{{- fail (printf "gpualert.wrap: container %s has no command, so only its image knows what it runs: set command" $name) -}}
{{- end -}}
{{- if not (kindIs "slice" $main.command) -}}{{- fail (printf "gpualert.wrap: container %s: command must be a list" $name) -}}{{- end -}}

{{- /* The container's own variables outrank ours; where its own log directory lies on a volume, ours is not needed. */ -}}
{{- $own := dict -}}
{{- range default list $main.env -}}{{- $_ := set $own .name . -}}{{- end -}}
{{- $logDir := default "/var/log/gpualert" $o.logDir -}}
{{- with get $own "GPUALERT_LOG_DIR" -}}
{{- if not .value -}}{{- fail (printf "gpualert.wrap: container %s takes GPUALERT_LOG_DIR from elsewhere: set the option logDir instead" $name) -}}{{- end -}}
{{- $logDir = .value -}}
{{- end -}}
{{- $theirs := false -}}
{{- $shared := list -}}
{{- range $mount := default list $main.volumeMounts -}}
{{- $place := printf "%s/" (trimSuffix "/" $mount.mountPath) -}}
{{- if and (hasKey $own "GPUALERT_LOG_DIR") (hasPrefix $place (printf "%s/" $logDir)) -}}{{- $theirs = true -}}
{{- else if has (trimSuffix "/" $mount.mountPath) (list "/gpualert" "/etc/gpualert-config" "/etc/gpualert-smtp" (trimSuffix "/" $logDir)) -}}
{{- fail (printf "gpualert.wrap: container %s has a volume mounted at %s already" $name $mount.mountPath) -}}
{{- end -}}
{{- $needed := false -}}
{{- range $variable, $entry := $own -}}
{{- if and (hasPrefix "GPUALERT_" $variable) (hasPrefix $place (printf "%s/" (toString $entry.value))) -}}{{- $needed = true -}}{{- end -}}
{{- end -}}
{{- if $needed -}}{{- $shared = append $shared $mount -}}{{- end -}}
{{- end -}}

{{- $volume := dict -}}
{{- range $source, $what := default dict $o.logVolume -}}{{- if not (kindIs "invalid" $what) -}}{{- $_ := set $volume $source $what -}}{{- end -}}{{- end -}}
{{- if gt (len $volume) 1 -}}{{- fail (printf "gpualert.wrap: logVolume is one volume, not %s" (keys $volume | sortAlpha | join " and ")) -}}{{- end -}}
{{- $mounts := list -}}
{{- $volumes := list (dict "name" "gpualert-bundle" "emptyDir" (dict "sizeLimit" "200Mi")) -}}
{{- if not $theirs -}}
{{- $mounts = append $mounts (dict "name" "gpualert-log" "mountPath" $logDir) -}}
{{- $volumes = append $volumes (merge (dict "name" "gpualert-log") (default (dict "emptyDir" dict) $volume)) -}}
{{- end -}}
{{- $rows := list -}}
{{- range $variable, $path := dict "GPUALERT_POD_NAME" "metadata.name" "GPUALERT_POD_NAMESPACE" "metadata.namespace" "GPUALERT_NODE_NAME" "spec.nodeName" -}}
{{- $rows = append $rows (dict "name" $variable "valueFrom" (dict "fieldRef" (dict "fieldPath" $path))) -}}
{{- end -}}
{{- $jobLabel := dig "jobLabel" "batch.kubernetes.io/job-name" $o -}}
{{- if $jobLabel -}}
{{- $rows = append $rows (dict "name" "GPUALERT_JOB_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" (printf "metadata.labels['%s']" $jobLabel)))) -}}
{{- end -}}
{{- $rows = append $rows (dict "name" "GPUALERT_CONTAINER_NAME" "value" $name) -}}
{{- /* The kubelet divides the room for termination messages by all of them, ours included. */ -}}
{{- $rows = append $rows (dict "name" "GPUALERT_CONTAINERS" "value" (toString (add (len $containers) (len $inits) (ternary 2 1 $survivor)))) -}}
{{- $rows = append $rows (dict "name" "GPUALERT_LOG_DIR" "value" $logDir) -}}
{{- with $o.notify -}}{{- $rows = append $rows (dict "name" "GPUALERT_NOTIFY" "value" .) -}}{{- end -}}
{{- with $o.configMap -}}
{{- $rows = append $rows (dict "name" "GPUALERT_CONFIG" "value" "/etc/gpualert-config/config.toml") -}}
{{- $mounts = append $mounts (dict "name" "gpualert-config" "mountPath" "/etc/gpualert-config" "readOnly" true) -}}
{{- $volumes = append $volumes (dict "name" "gpualert-config" "configMap" (dict "name" . "optional" true)) -}}
{{- end -}}
{{- with $o.smtpSecret -}}
{{- $rows = append $rows (dict "name" "GPUALERT_SMTP_PASSWORD_FILE" "value" "/etc/gpualert-smtp/password") -}}
{{- $mounts = append $mounts (dict "name" "gpualert-smtp" "mountPath" "/etc/gpualert-smtp" "readOnly" true) -}}
{{- $volumes = append $volumes (dict "name" "gpualert-smtp" "secret" (dict "secretName" . "optional" true)) -}}
{{- end -}}
{{- $env := list -}}
{{- range $rows -}}{{- if not (hasKey $own .name) -}}{{- $env = append $env . -}}{{- end -}}{{- end -}}
{{- $shown := list -}}
{{- range default list $main.env -}}
{{- if and (hasPrefix "GPUALERT_" .name) (ne .name "GPUALERT_TERMINATION_LOG") -}}{{- $shown = append $shown . -}}{{- end -}}
{{- end -}}
{{- $attendEnv := concat $shown $env -}}
{{- if and $main.terminationMessagePath (not (hasKey $own "GPUALERT_TERMINATION_LOG")) -}}
{{- $env = append $env (dict "name" "GPUALERT_TERMINATION_LOG" "value" $main.terminationMessagePath) -}}
{{- end -}}

{{- /* Resources: a copy of the container's for the init container. For the survivor requests are limits where the pod
may be Guaranteed, and are none where it is BestEffort. */ -}}
{{- $limited := true -}}
{{- $some := false -}}
{{- range concat $containers $inits -}}
{{- $resources := default dict .resources -}}
{{- $limits := default dict $resources.limits -}}
{{- $requests := default dict $resources.requests -}}
{{- range list "cpu" "memory" -}}
{{- if not (hasKey $limits .) -}}{{- $limited = false -}}{{- end -}}
{{- if or (hasKey $limits .) (hasKey $requests .) -}}{{- $some = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $copied := dict -}}
{{- range $kind := list "requests" "limits" -}}
{{- with pick (default dict (get (default dict $main.resources) $kind)) "cpu" "memory" "ephemeral-storage" -}}{{- $_ := set $copied $kind . -}}{{- end -}}
{{- end -}}
{{- $attendResources := dict -}}
{{- if $limited -}}{{- $attendResources = dict "requests" (dict "cpu" "200m" "memory" "256Mi") "limits" (dict "cpu" "200m" "memory" "256Mi") -}}
{{- else if $some -}}{{- $attendResources = dict "requests" (dict "cpu" "10m" "memory" "64Mi") "limits" (dict "memory" "256Mi") -}}
{{- end -}}

{{- /* The survivor is the command's own user, where a securityContext or survivorUser says who that is. */ -}}
{{- $security := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- $podSecurity := default dict $pod.securityContext -}}
{{- $mainSecurity := default dict $main.securityContext -}}
{{- $user := get $podSecurity "runAsUser" -}}
{{- $installSecurity := merge (dict "runAsNonRoot" (ne (toString $user) "0")) (deepCopy $security) -}}
{{- if hasKey $mainSecurity "runAsUser" -}}{{- $user = $mainSecurity.runAsUser -}}
{{- else if and (not (hasKey $podSecurity "runAsUser")) (hasKey $o "survivorUser") -}}{{- $user = $o.survivorUser -}}
{{- end -}}
{{- $attendSecurity := merge (dict "runAsNonRoot" (ne (toString $user) "0")) (deepCopy $security) -}}
{{- if ne (toString $user) "" -}}{{- $_ := set $attendSecurity "runAsUser" (int64 $user) -}}{{- end -}}
{{- if hasKey $mainSecurity "runAsGroup" -}}{{- $_ := set $attendSecurity "runAsGroup" (int64 $mainSecurity.runAsGroup) -}}{{- end -}}

{{- $bundle := dict "name" "gpualert-bundle" "mountPath" "/gpualert" "readOnly" true -}}
{{- $_ := set $main "command" (concat (list $launcher "run" "--") $main.command) -}}
{{- $_ := set $main "env" (concat (default list $main.env) $env) -}}
{{- $_ := set $main "volumeMounts" (concat (default list $main.volumeMounts) (list $bundle) $mounts) -}}
{{- if not $main.terminationMessagePolicy -}}{{- $_ := set $main "terminationMessagePolicy" "FallbackToLogsOnError" -}}{{- end -}}
{{- $install := dict "name" "gpualert-install" "image" $image "command" (list $launcher "install" "/target") "volumeMounts" (list (dict "name" "gpualert-bundle" "mountPath" "/target")) "securityContext" $installSecurity -}}
{{- with $copied -}}{{- $_ := set $install "resources" . -}}{{- end -}}
{{- $added := list $install -}}
{{- if $survivor -}}
{{- $attend := dict "name" "gpualert-attend" "image" $image "restartPolicy" "Always" "command" (list $launcher "attend" "--log-dir" $logDir) "env" $attendEnv "volumeMounts" (concat $mounts $shared) "securityContext" $attendSecurity -}}
{{- with $attendResources -}}{{- $_ := set $attend "resources" . -}}{{- end -}}
{{- $added = append $added $attend -}}
{{- end -}}
{{- range $container := $added -}}{{- with $o.imagePullPolicy -}}{{- $_ := set $container "imagePullPolicy" . -}}{{- end -}}{{- end -}}
{{- $_ := set $pod "initContainers" (concat $added $inits) -}}
{{- $_ := set $pod "volumes" (concat (default list $pod.volumes) $volumes) -}}
{{- with $o.imagePullSecrets -}}
{{- $secrets := default list $pod.imagePullSecrets -}}
{{- range $secret := . -}}
{{- if not (has (dict "name" $secret) $secrets) -}}{{- $secrets = append $secrets (dict "name" $secret) -}}{{- end -}}
{{- end -}}
{{- $_ := set $pod "imagePullSecrets" $secrets -}}
{{- end -}}
{{- end -}}
{{- toYaml $pod -}}
{{- end -}}
